require "requires_itself"

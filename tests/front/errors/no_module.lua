local x = require "torch"

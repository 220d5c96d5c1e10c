local pico = require "pico"
local x = = 2

local pico = require "pico"
local f
f(2)

local pico, nn = require "pico", require "nn"
local sum = pico.sum
local f = pico.op "f(x) = x \0"

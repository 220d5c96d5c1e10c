local pico, nn = require "pico", require "nn"
local sum = pico.sum
local f = pico.op(("  f(%s) =\n      %s * y"):format("x", "x"))

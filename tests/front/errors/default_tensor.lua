local pico, nn = require "pico", require "nn"
local sum = pico.sum
local m = pico.model "t"
m:axes { hidden = 8, ffn = 16, vocab = 65, position = 32 }
local f = pico.op [[
  f(x; a = x) = a * x
]]

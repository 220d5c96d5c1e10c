local pico, nn = require "pico", require "nn"
local sum = pico.sum
local m = pico.model "t"
m:axes { hidden = 8, ffn = 16, vocab = 65, position = 32 }
local f = pico.op [[
  norm(x[.., hidden], gain[hidden]) =
      scale = rsqrt(mean[hidden](x^2))
      x * scal * gain
]]

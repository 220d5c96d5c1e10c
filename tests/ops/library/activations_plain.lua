-- same as: activations.lua
-- The activations by other functions.
local pico = require "pico"
local sum = pico.sum

local nn = pico.library [[
  silu_(x)      = x / (1 + exp(-x))
  gelu_(x)      = x/2 + x/2 * erf(x * 0.5^0.5)
  gelu_tanh_(x) = x / (1 + exp(-2 * (2/pi)^0.5 * (x + 0.044715 * x*x*x)))
  relu2_(x)     = max(x, 0) * max(0, x)
  swiglu_(gate, up) = up * gate / (1 + exp(-gate))
  softcap_(x; cap)  = cap - 2*cap / (exp(2*x/cap) + 1)
]]

local m = pico.model "activations"
m:axes { vocab = 7, d = 5 }
m:input "targets"
local x = m("embed", "vocab d") { vocab = m:input "tokens" }
local y = x * m("scale", "d")
local results = { nn.silu_(y), nn.gelu_(y), nn.gelu_tanh_(y), nn.relu2_(y), nn.swiglu_(y, x), nn.softcap_(y, { cap = 1.5 }) }
local loss = 0
for i, r in ipairs(results) do loss = loss + sum("d", r * m("out" .. i, "d")) end
m:loss(loss)
return m

-- The activations of nn.lua.
local pico, nn = require "pico", require "nn"
local sum = pico.sum

local m = pico.model "activations"
m:axes { vocab = 7, d = 5 }
m:input "targets"
local x = m("embed", "vocab d") { vocab = m:input "tokens" }
local y = x * m("scale", "d")
local results = { nn.silu(y), nn.gelu(y), nn.gelu_tanh(y), nn.relu2(y), nn.swiglu(y, x), nn.softcap(y, { cap = 1.5 }) }
local loss = 0
for i, r in ipairs(results) do loss = loss + sum("d", r * m("out" .. i, "d")) end
m:loss(loss)
return m

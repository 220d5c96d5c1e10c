-- differences: no
-- Gradients of one's own that are not derivatives.
local pico, nn = require "pico", require "nn"
local sum = pico.sum

local m = pico.model "own_gradient"
m:axes { vocab = 7, d = 3 }
m:input "targets"
local x = m("embed", "vocab d") { vocab = m:input "tokens" } * 8
local r = nn.round_through(x * m("scale", "d"))
m:loss(sum("d", r * r * m("out", "d")))
return m

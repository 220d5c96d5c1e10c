-- Multi-head latent attention: keys of two parts, one without heads; values of another size.
local pico, nn = require "pico", require "nn"
local sum = pico.sum

local m = pico.model "mla"
m:axes { vocab = 7, hidden = 4, heads = 2, nope = 3, rot = 2, value = 5 }
m:input "targets"
local x = m("embed", "vocab hidden") { vocab = m:input "tokens" }
local function project(name, axes) return sum("hidden", x * m(name, "hidden " .. axes)) end
local q, qr = project("q", "heads nope"), project("qr", "heads rot")
local k, kr, v = project("k", "heads nope"), project("kr", "rot"), project("v", "heads value")
local a = nn.mla_attention(q, qr, k, kr, v)
local b = nn.mla_attention(q, qr, k, kr, a, { scale = 0.7 })
m:loss(sum("heads value", a * m("a", "heads value") + b * b * m("b", "value heads")))
return m

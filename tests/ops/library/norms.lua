-- The norms of nn.lua, over the last axis and over another; a gain of another axis' name; both results of add_rmsnorm.
local pico, nn = require "pico", require "nn"
local sum = pico.sum

local m = pico.model "norms"
m:axes { vocab = 7, heads = 3, hidden = 5 }
m:input "targets"
local tokens = m:input "tokens"
local x, y = m("x", "vocab heads hidden") { vocab = tokens }, m("y", "vocab hidden heads") { vocab = tokens }
local loss = 0
local function add(name, r) loss = loss + sum("heads hidden", r * r * m(name, "heads hidden") + r) end
local function gain(name) return m(name, "hidden", { init = "ones" }) end
add("rms", nn.rmsnorm(x, gain "rms.gain"))
add("rms_eps", nn.rmsnorm(x, gain "rms_eps.gain", { eps = 0.1 }))
add("rms_heads", nn.rmsnorm(x, m("rms_heads.gain", "heads", { init = "ones" })))
add("rms_turned", nn.rmsnorm(y, gain "rms_turned.gain"))
add("gemma", nn.gemma_norm(x, m("gemma.gain", "hidden")))
add("layer", nn.layernorm(x, gain "layer.gain", m("layer.bias", "hidden")))
add("layer_heads", nn.layernorm(x, m("layer_heads.gain", "heads"), m("layer_heads.bias", "heads"), { eps = 0.01 }))
local s, n = nn.add_rmsnorm(x, y, gain "add.gain")
add("sum", s)
add("sum_norm", n)
local whole = sum("heads", x * m("pool", "heads"))
loss = loss + sum("hidden", nn.rmsnorm(whole, gain "whole.gain") * nn.layernorm(whole, gain "whole.gain2", m("whole.bias", "hidden")))
m:loss(loss)
return m

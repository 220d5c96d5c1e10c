-- same as: norms.lua
-- The norms with the variance as a difference of means and a quotient instead of a product.
local pico = require "pico"
local sum = pico.sum

local nn = pico.library [[
  rms(x[.., d], gain[d]; eps = 1e-6) = gain * x / sqrt(eps + sum[d](x*x) / extent(d))
  layer(x[.., d], gain[d], bias[d]; eps = 1e-5) =
      m = sum[d](x) / extent(d)
      bias + gain * (x - m) / sqrt(sum[d](x*x) / extent(d) - m*m + eps)
  raised(x) = x + 1
]]

local m = pico.model "norms"
m:axes { vocab = 7, heads = 3, hidden = 5 }
m:input "targets"
local tokens = m:input "tokens"
local x, y = m("x", "vocab heads hidden") { vocab = tokens }, m("y", "vocab hidden heads") { vocab = tokens }
local loss = 0
local function add(name, r) loss = loss + sum("heads hidden", r * r * m(name, "heads hidden") + r) end
local function gain(name) return m(name, "hidden", { init = "ones" }) end
add("rms", nn.rms(x, gain "rms.gain"))
add("rms_eps", nn.rms(x, gain "rms_eps.gain", { eps = 0.1 }))
add("rms_heads", nn.rms(x, m("rms_heads.gain", "heads", { init = "ones" })))
add("rms_turned", nn.rms(y, gain "rms_turned.gain"))
add("gemma", nn.rms(x, nn.raised(m("gemma.gain", "hidden"))))
add("layer", nn.layer(x, gain "layer.gain", m("layer.bias", "hidden")))
add("layer_heads", nn.layer(x, m("layer_heads.gain", "heads"), m("layer_heads.bias", "heads"), { eps = 0.01 }))
local s = x + y
local n = nn.rms(s, gain "add.gain")
add("sum", s)
add("sum_norm", n)
local whole = sum("heads", x * m("pool", "heads"))
loss = loss + sum("hidden", nn.rms(whole, gain "whole.gain") * nn.layer(whole, gain "whole.gain2", m("whole.bias", "hidden")))
m:loss(loss)
return m

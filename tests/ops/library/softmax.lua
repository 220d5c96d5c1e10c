-- softmax and log_softmax over the last axis, over one in the middle, over the sequence; with masked places.
local pico, nn = require "pico", require "nn"
local sum = pico.sum

local masked = pico.op [[
  masked_softmax[k](x[.., seq, k]) = softmax[k](where(index(k) <= index(seq), 3*x, -inf))
]]

local m = pico.model "softmax"
m:axes { vocab = 7, a = 3, k = 4 }
m:input "targets"
local x = m("embed", "vocab a k") { vocab = m:input "tokens" }
local y = x * m("scale", "k a")
local loss = 0
local function add(name, r) loss = loss + sum("a k", r * m(name, "a k")) end
add("last", nn.softmax("k", y))
add("middle", nn.softmax("a", y))
add("seq", nn.softmax("seq", y))
add("log", nn.log_softmax("k", y) * y)
add("log_middle", nn.log_softmax("a", y))
add("masked", masked("k", y))
m:loss(loss)
return m

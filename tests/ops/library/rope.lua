-- Rotary positions in all forms, and alibi.
local pico, nn = require "pico", require "nn"
local sum = pico.sum

local m = pico.model "rope"
m:axes { vocab = 7, heads = 3, head_dim = 6 }
m:input "targets"
local tokens = m:input "tokens"
local x = m("x", "vocab heads head_dim") { vocab = tokens }
local loss = 0
local function add(name, r) loss = loss + sum("heads head_dim", r * r * m(name, "heads head_dim") + r) end
add("rope", nn.rope(x))
add("theta", nn.rope(x, { theta = 100 }))
add("interleaved", nn.rope_interleaved(x, { theta = 50 }))
add("llama3", nn.rope_llama3(x, { theta = 500, factor = 8, low = 1, high = 4, context = 32 }))
local scores = sum("head_dim", x * x { seq = "key" })
local biased = nn.softmax("key", nn.alibi(scores))
m:loss(loss + sum("heads key", biased * scores * m("alibi", "heads") ))
return m

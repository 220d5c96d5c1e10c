-- differences: no
-- sizes: 133 1
-- Attention over more than a block of keys, heads of odd sizes and strides: parts of one product, turned axes, one query head.
local pico, nn = require "pico", require "nn"
local sum = pico.sum

local m = pico.model "wide_attention"
m:axes { vocab = 31, hidden = 24, qkv = 3, heads = 2, head_dim = 17 }
m:input "targets"
local x = m("embed", "vocab hidden") { vocab = m:input "tokens" }
local joined = sum("hidden", x * m("joined", "(qkv heads head_dim) hidden"))
local a = nn.attention(joined { qkv = 0 }, joined { qkv = 1 }, joined { qkv = 2 })
local loss = sum("heads head_dim", a * a * m("a", "heads head_dim"))
local turned = sum("hidden", x * m("turned", "hidden (head_dim heads)"))
local b = nn.attention(turned, turned, turned, { scale = 0.1, window = 64 })
loss = loss + sum("heads head_dim", b * m("b", "head_dim heads"))
local q = sum("hidden", x * m("q", "hidden heads head_dim"))
local k, v = sum("hidden", x * m("k", "hidden head_dim")), sum("hidden", x * m("v", "head_dim hidden"))
local c = nn.attention(nn.softcap(q, { cap = 2 }), k, v, { scale = 0.2 })
m:loss(loss + sum("heads head_dim", c * m("c", "heads head_dim") * c))
return m

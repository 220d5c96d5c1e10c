-- Lookups and joins of nn.lua: embedding, concat, causal_conv, top_k_gate; token numbers as values.
local pico, nn = require "pico", require "nn"
local sum = pico.sum

local one_hot, previous = pico.op [[
  one_hot[k](t[..], w[k])      = where(index(k) == t, w, 0.1)
  seen_before(x[.., seq], t[.., seq]) = sum[key](where(t == t{seq = key} and index(key) < index(seq), x{seq = key}, 0)) * x
]]

local m = pico.model "lookups"
m:axes { vocab = 7, hidden = 4, tap = 3, expert = 5, first = 3, second = 2, both = 5, other = 4 }
m:input "targets"
local tokens = m:input "tokens"
local x = nn.embedding(m("embed", "vocab hidden"), tokens)
local conv = nn.causal_conv(x, m("conv.weight", "hidden tap"), m("conv.bias", "hidden"))
local loss = sum("hidden", conv * conv * m("conv.out", "hidden"))
local gate = nn.top_k_gate("expert", sum("hidden", conv * m("router", "hidden expert")), { k = 2 })
local experts = sum("hidden", x * m("experts", "expert hidden other"))
loss = loss + sum("expert other", gate * experts * m("experts.out", "other"))
local joined = nn.concat("first", "second", "both", sum("hidden", x * m("first", "hidden first")),
                         sum("hidden", x * m("second", "hidden second")))
loss = loss + sum("both", joined * joined * m("both", "both"))
loss = loss + sum("vocab", one_hot("vocab", tokens, m("hot", "vocab")) * m("cold", "vocab"))
loss = loss + sum("hidden", previous(x, tokens) * m("before", "hidden"))
-- the same table looked up with shifted tokens, and a table with two looked-up axes
local grid = m("grid", "vocab vocab2:7")
loss = loss + sum("vocab2", grid { vocab = tokens } ^ 2)
loss = loss + grid { vocab = tokens, vocab2 = tokens } * loss
m:loss(loss)
return m

-- same as: lookups.lua
-- Lookups, joins and routing as sums over conditions.
local pico = require "pico"
local sum = pico.sum

local one_hot, previous, embedding, causal_conv, top_2, joined_of, second_of, row, element = pico.op [[
  one_hot[k](t[..], w[k])      = w * sum[k](where(index(k) == t, 1, 0)) * where(index(k) == t, 1, 0) + where(index(k) ~= t, 0.1, 0)
  seen_before(x[.., seq], t[.., seq]) =
      sum[key](x{seq = key} * where(t == t{seq = key}, 1, 0) * where(index(key) < index(seq), 1, 0)) * x
  table_row(table[vocab, hidden], t[..]) = sum[vocab](table * where(index(vocab) == t, 1, 0))
  convolved(x[.., seq, channel], w[channel, tap], bias[channel]) =
      bias + sum[t, tap](where(index(t) == index(seq) - 2 + index(tap), x{seq = t} * w, 0))
  top_2_gate[expert](z[.., expert]) =
      e    = exp(z)
      top  = max[expert](z)
      next = max[expert](where(z == top, -inf, z))
      kept = where(z >= next, e, 0)
      kept / sum[expert](kept)
  joined[first, d](a[.., first])   = sum[first](where(index(d) == index(first), a, 0))
  behind[second, d](b[.., second]) = sum[second](where(index(d) == index(second) + 3, b, 0))
  row_of(table[vocab, vocab2], t[..])  = sum[vocab](table * where(index(vocab) == t, 1, 0))
  element_of(table[vocab, vocab2], t[..]) = sum[vocab, vocab2](where(index(vocab) == t and index(vocab2) == t, table, 0))
]]

local m = pico.model "lookups"
m:axes { vocab = 7, hidden = 4, tap = 3, expert = 5, first = 3, second = 2, both = 5, other = 4 }
m:input "targets"
local tokens = m:input "tokens"
local x = embedding(m("embed", "vocab hidden"), tokens)
local conv = causal_conv(x, m("conv.weight", "hidden tap"), m("conv.bias", "hidden"))
local loss = sum("hidden", conv * conv * m("conv.out", "hidden"))
local gate = top_2("expert", sum("hidden", conv * m("router", "hidden expert")))
local experts = sum("hidden", x * m("experts", "expert hidden other"))
loss = loss + sum("expert other", gate * experts * m("experts.out", "other"))
local joined = joined_of("first", "both", sum("hidden", x * m("first", "hidden first"))) +
               second_of("second", "both", sum("hidden", x * m("second", "hidden second")))
loss = loss + sum("both", joined * joined * m("both", "both"))
loss = loss + sum("vocab", one_hot("vocab", tokens, m("hot", "vocab")) * m("cold", "vocab"))
loss = loss + sum("hidden", previous(x, tokens) * m("before", "hidden"))
local grid = m("grid", "vocab vocab2:7")
loss = loss + sum("vocab2", row(grid, tokens) ^ 2)
loss = loss + element(grid, tokens) * loss
m:loss(loss)
return m

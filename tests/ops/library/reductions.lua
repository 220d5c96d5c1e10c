-- sum and mean over first, middle, last and several axes; of products with factors that lack the axis; of sequences.
local pico = require "pico"
local sum, mean = pico.sum, pico.mean

local first, middle, last, several, all, spread = pico.op [[
  sum_first[a](x[.., a])       = sum[a](x) * mean[a](x*x)
  sum_middle[b](x[.., b])      = sum[b](x*x*x) - mean[b](x)
  sum_last[c](x[.., c])        = x * sum[c](x)
  sum_two[a, c](x[.., a, c])   = mean[a, c](x) * x + sum[c, a](sin(x))
  sum_all[a, b, c](x[.., a, b, c]) = sum[b, a, c](x) * mean[c](sum[a](mean[b](x*x)))
  sum_seq(x[.., seq])          = x * mean[seq](x) + sum[seq](x * x)
]]
local whole = pico.op [[ counted_key(x[.., seq]) =
    x * sum[key](where(index(key) <= index(seq), x{seq = key}, 0)) +
    x / sum[key](where(index(key) <= index(seq), 1, 0)) ]]

local m = pico.model "reductions"
m:axes { vocab = 7, a = 2, b = 3, c = 5 }
m:input "targets"
local x = m("embed", "vocab a b c") { vocab = m:input "tokens" }
local y = x * m("scale", "b a c")
local loss = sum("b c", first("a", y) * m("first", "b c"))
loss = loss + sum("a c", middle("b", y) * m("middle", "a c"))
loss = loss + sum("a b c", last("c", y) * m("last", "c b a"))
loss = loss + sum("a b c", several("a c", y) * m("several", "a b c"))
loss = loss + all("a b c", y)
loss = loss + sum("a b c", spread(y) * x) + sum("a b c", whole(y) * x)
local few = mean("a", y)
loss = loss + sum("b c", few * few) + mean("c b", sum("a", y * m("c", "c")) ^ 2)
m:loss(loss)
return m

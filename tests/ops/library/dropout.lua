-- Dropout: the mask is the same in forward, backward and differences; two masks are never the same.
local pico, nn = require "pico", require "nn"
local sum = pico.sum

local noisy, over_seq = pico.op [[
  noisy(x[.., d])      = x * random[.., d]() + where(random[d]() < 0.5, x^2, 0)
  rows(x[.., seq, d])  = x * where(random[seq]() < 0.6, 1.5, 0) + random[.., seq]()
]]

local m = pico.model "dropout"
m:axes { vocab = 7, d = 5 }
m:input "targets"
local x = m("embed", "vocab d") { vocab = m:input "tokens" }
local y = nn.dropout(x, { p = 0.4 })
local z = nn.dropout(sum("d", y * m("w", "d e:4")), { p = 0.3 })
local loss = sum("e", z * z * m("z", "e")) + sum("d", noisy(y) * m("noisy", "d")) + sum("d", over_seq(x) * m("rows", "d"))
m:loss(loss)
return m

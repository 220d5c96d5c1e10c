-- Split axes in headers: both orders, three parts, results that have all parts and are merged again, open parts.
local pico = require "pico"
local sum = pico.sum

local swap, deal, three = pico.op [[
  swap_halves(x[.., d = (two: 2, half)])  = where(index(two) == 0, -x{two = 1}, x{two = 0}) * x
  deal(x[.., d = (half, two: 2)])         = x{two = 0} * x + x{half = extent(half) - 1 - half}
  cube(x[.., d = (p: 2, q: 3, r)])        = x * sum[q](x) / (1 + index(r)) + max[p, r](x)
]]

local m = pico.model "splits"
m:axes { vocab = 7, d = 12 }
m:input "targets"
local x = m("embed", "vocab d") { vocab = m:input "tokens" }
local loss = sum("d", swap(x) * m("swap", "d")) + sum("d", deal(x) * m("deal", "d")) + sum("d", three(x) * m("three", "d"))
m:loss(loss)
return m

-- same as: splits.lua
-- Split axes as arithmetic on the position: 12 = 2 x 6 = 6 x 2 = 2 x 3 x 2.
local pico = require "pico"
local sum = pico.sum

local swap, deal, three = pico.op [[
  swap_arithmetic(x[.., d]) = where(index(d) < 6, -x{d = d + 6}, x{d = d - 6}) * x
  deal_arithmetic(x[.., d]) =
      half = floor(index(d) / 2)
      sum[e](where(index(e) == 2*half, x{d = e}, 0)) * x + sum[e](where(index(e) == 2*(5 - half) + index(d) - 2*half, x{d = e}, 0))
  cube_arithmetic(x[.., d]) =
      p = floor(index(d) / 6)
      q = floor(index(d) / 2) - 3*p
      r = index(d) - 6*p - 2*q
      over_q = sum[e](where(floor(index(e) / 6) == p and index(e) - 2*floor(index(e) / 2) == r, x{d = e}, 0))
      of_q   = max[e](where(floor(index(e) / 2) - 3*floor(index(e) / 6) == q, x{d = e}, -inf))
      x * over_q / (1 + r) + of_q
]]

local m = pico.model "splits"
m:axes { vocab = 7, d = 12 }
m:input "targets"
local x = m("embed", "vocab d") { vocab = m:input "tokens" }
local loss = sum("d", swap(x) * m("swap", "d")) + sum("d", deal(x) * m("deal", "d")) + sum("d", three(x) * m("three", "d"))
m:loss(loss)
return m

-- same as: braces.lua
-- Braces as sums over a whole renaming: position i is where(index(e) == i, x{d = e}, 0) summed over e.
local pico = require "pico"
local sum = pico.sum

local pick, last, rename, shorter, shift, window, signed, mirror, slice, joined, gathered, positions, diagonal, together,
      swap = pico.op [[
  pick_first(x[.., d])        = sum[e](where(index(e) == 0, x{d = e}, 0)) * x + sum[e](where(index(e) == 2, x{d = e}, 0))
  pick_last(x[.., d])         = sum[e](where(index(e) == 4, x{d = e}, 0)) * x
  renamed(x[.., d])           = sum[e](x{d = e} * sum[f](where(index(f) + index(e) == 4, x{d = f}, 0))) * x
  shorter_rename[s](x[.., d], w[s]) = sum[d](where(index(d) == index(s), x, 0)) * w
  shifted(x[.., seq])         = x * sum[t](where(index(t) == index(seq) - 1, x{seq = t}, 0)) +
                                sum[t](where(index(t) == index(seq) + 2, x{seq = t}, 0))
  windowed(x[.., seq, d], w[tap, d]) = sum[t, tap](where(index(t) == index(seq) - index(tap), x{seq = t} * w, 0))
  other_window(x[.., seq, d], w[tap, d]) =
      sum[tap](sum[t](where(index(t) == index(seq) + index(tap) - 2, x{seq = t}, 0)) * w^2) + x
  mirrored(x[.., d])          = sum[e](where(index(e) == 4 - index(d), x{d = e}, 0)) * x
  sliced[s](x[.., d])         = sum[d](where(index(d) == index(s) + 2, x, 0))
  side_by_side[d](x[.., s], y[.., t]) = sum[s](where(index(d) == index(s), x, 0)) + sum[t](where(index(d) == index(t) + 3, y, 0))
  chosen(x[.., d], i[..])     = sum[d](where(index(d) == i, x, 0))
  by_position(x[.., seq, d])  = sum[e](where(2*index(e) == index(seq) or 2*index(e) + 1 == index(seq), x{d = e}, 0)) * x
  on_diagonal(x[.., seq, k])  = sum[t](where(index(t) == index(k), x{seq = t}, 0)) * x
  at_once(x[.., seq, d])      = sum[t, d](where(index(t) == index(seq) - 1 and index(d) == 1, x{seq = t}, 0)) *
                                sum[t, d](where(index(t) == index(seq) + 1 and index(d) == 0, x{seq = t}, 0))
  swapped[d, e](x[.., d, e])  = sum[f, h](where(index(f) == index(e) and index(h) == index(d), x{d = f, e = h}, 0)) * x
]]

local m = pico.model "braces"
m:axes { vocab = 5, d = 5, s = 3, t = 2, tap = 3, k = 4, e = 5 }
m:input "targets"
local tokens = m:input "tokens"
local x = m("x", "vocab d") { vocab = tokens } * m("scale", "seq d")
local loss = 0
local function add(name, y) loss = loss + sum("d", y * y * m(name, "d")) end
add("pick", pick(x))
add("last", last(x))
add("rename", rename(x))
loss = loss + sum("s", shorter("s", x, m("shorter", "s")) * m("shorter2", "s"))
add("shift", shift(x))
add("window", window(x, m("taps", "tap d")))
add("signed", signed(x, m("taps2", "tap d")))
add("mirror", mirror(x))
local part, rest = slice("s", x), slice("t", pico.sin(x))
loss = loss + sum("s", part * part * m("slice", "s"))
add("joined", joined("d", part, rest))
loss = loss + gathered(x, tokens) * gathered(x * x, tokens)
add("positions", positions(x))
local square = sum("d", x * m("square", "d k"))
loss = loss + sum("k", diagonal(square) * square)
loss = loss + together(x) * sum("d", x)
local table = m("table", "d e")
add("swap", sum("e", x { d = "e" } * swap("d", "e", table)))
m:loss(loss)
return m

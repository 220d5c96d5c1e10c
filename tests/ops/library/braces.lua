-- Braces in the text of an op: every row of the table of 4.3, of computed values.
local pico = require "pico"
local sum = pico.sum

local pick, last, rename, shorter, shift, window, signed, mirror, slice, joined, gathered, positions, diagonal, together,
      swap = pico.op [[
  pick_first(x[.., d])        = x{d = 0} * x + x{d = 2}
  pick_last(x[.., d])         = x{d = extent(d) - 1} * x
  renamed(x[.., d])           = sum[e](x{d = e} * x{d = extent(d) - 1 - e}) * x
  shorter_rename[s](x[.., d], w[s]) = x{d = s} * w
  shifted(x[.., seq])         = x * x{seq = seq - 1} + x{seq = seq + 2}
  windowed(x[.., seq, d], w[tap, d]) = sum[tap](x{seq = seq - tap} * w)
  other_window(x[.., seq, d], w[tap, d]) = sum[tap](x{seq = seq + tap + 1 - extent(tap)} * w * w) + x
  mirrored(x[.., d])          = x{d = extent(d) - 1 - d} * x
  sliced[s](x[.., d])         = x{d = s + 2}
  side_by_side[d](x[.., s], y[.., t]) = where(index(d) < extent(s), x{s = d + 0}, y{t = d - extent(s)})
  chosen(x[.., d], i[..])     = x{d = i}
  by_position(x[.., seq, d])  = x{d = int(0.5*index(seq))} * x
  on_diagonal(x[.., seq, k])  = x{seq = k} * x
  at_once(x[.., seq, d])      = x{seq = seq - 1, d = 1} * x{d = 0, seq = seq + 1}
  swapped[d, e](x[.., d, e])  = x{d = e, e = d} * x
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

-- ones.lua: a model whose every gradient is exactly 1: the loss of a token is the sum of all elements of all parameters.
-- Its gradient norm is the root of their number; a copy that counts twice, a shard that counts once for all, or padding
-- that has a gradient changes it. The parameters have the places of a transformer's, and values that are not sharded as
-- they are (`ones`) stand for its activations: so all its reductions happen.
--
-- x[batch, seq, hidden] carries the sum in parts; what has no axis hidden goes to position 0. Every third layer has no
-- parameters, so that a stage may have none.
local pico = require "pico"
local sum = pico.sum

local c = pico.config { vocab_size = 65, num_hidden_layers = 4, kv = 4, group = 2, seq = 16 }
local m = pico.model("ones", { init = 0.02 })
m:axes { hidden = 32, ffn = 48, vocab = c.vocab_size, kv = c.kv, group = c.group, head_dim = 4, position = c.seq }

-- start: x of a parameter alone; ones: 1 where x is finite, without gradient; first: a value of each token is added to x;
-- spread: a lookup by position is used once a sample, not once a token, so its gradient needs a factor seq
local op = pico.library [[
  start(token[..], w[hidden]) = where(token >= 0, 1, 0) * w
  ones(x) = where(x < 1e30, 1, 0)
  first(x[.., hidden], s[..]) = x + where(index(hidden) == 0, s, 0)
  spread(x[.., seq]) = extent(seq) * x
]]

local function rows(x, w, to) return sum(to, sum("hidden", op.ones(x) * w)) end

local function block(p, x)
  x = x + p("norm.weight", "hidden", { init = "ones" })
  local h = op.ones(x)
  local q = sum("hidden", h * p("q.weight", "(kv group head_dim) hidden"))
  local k = sum("hidden", h * p("k.weight", "(kv head_dim) hidden")) + p("k.bias", "(kv head_dim)")
  x = x + sum("kv group head_dim", op.ones(q) * p("o.weight", "hidden (kv group head_dim)")) + p("o.bias", "hidden")
  x = op.first(op.first(x, sum("kv group head_dim", q)), sum("kv head_dim", k))
  local up = sum("hidden", op.ones(x) * p("up.weight", "ffn hidden")) + p("up.bias", "ffn")
  x = x + sum("ffn", op.ones(up) * p("down.weight", "hidden ffn"))
  return op.first(x, sum("ffn", up))
end
local function plain(_, x) return 1.5 * x - 0.5 * x end

local tokens, targets = m:input "tokens", m:input "targets"
local tied = m("tied.weight", "vocab hidden")  -- used on the first and the last stage, half of it on each
local x = op.start(tokens, m("first.weight", "hidden"))
x = x + op.spread(m("position.weight", "position hidden") { position = "seq" })
x = op.first(x, 0.5 * rows(x, tied, "vocab"))
for i = 0, c.num_hidden_layers - 1 do x = m:layer("layers." .. i, i % 3 == 1 and plain or block, x) end
x = op.first(x + m("last.weight", "hidden"), 0.5 * rows(x, tied, "vocab") + rows(x, m("head.weight", "vocab hidden"), "vocab"))
m:loss(sum("hidden", x) + 0 * targets)
return m

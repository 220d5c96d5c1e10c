-- graphs/mlp.lua: a first model, to read before the others: guess the next byte from the last eight (Bengio et al. 2003).
--
-- A tensor has named axes; nothing depends on their position. `pico` makes tensors, `nn` is a library of ops
-- (graphs/nn.lua), and an op of one's own is a few lines of text, from which its gradient and its kernels follow.
local pico, nn = require "pico", require "nn"
local sum = pico.sum

-- The header names the axes that the op talks about; `..` is whatever else x has (here batch). Brackets list axes:
-- sum[tap, feature] adds over both. Braces put an index in the place of an axis: x{seq = seq - tap} is x, tap places
-- earlier, 0 before the beginning. So this is a causal convolution over the last eight bytes, and a tanh.
local recent = pico.op [[
  recent(x[.., seq, feature], w[tap, feature, hidden], bias[hidden]) =
      tanh(sum[tap, feature](x{seq = seq - tap} * w) + bias)
]]

local m = pico.model "mlp"
m:axes { vocab = 256, feature = 32, tap = 8, hidden = 256 }            -- batch and seq come from the command line

local tokens, targets = m:input "tokens", m:input "targets"            -- [batch, seq], whole numbers

-- A parameter: its name in the checkpoint, and its axes in storage order. In Lua, braces look up, too: the row of the
-- table for each token, [batch, seq, feature].
local embed = m("embed.weight", "vocab feature")
local h = recent(embed { vocab = tokens },
                 m("fc1.weight", "tap feature hidden"), m("fc1.bias", "hidden", { init = "zeros" }))
local z = sum("hidden", h * m("fc2.weight", "hidden vocab"))           -- a sum of a product is a matrix product

m:loss(nn.cross_entropy(z, targets))                                   -- [batch, seq]: one value a token

m:train { data = "build/corpus.txt", steps = 500, lr = 3e-3 }          -- defaults; picorun's options override them
return m

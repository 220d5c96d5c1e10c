-- same as: cross_entropy.lua
-- Cross-entropy without a maximum taken out, the target by a sum.
local pico = require "pico"
local sum = pico.sum

local cross_entropy = pico.op [[
  plain_cross_entropy(z[.., vocab], target[..]; smoothing = 0, z_loss = 0) =
      lse  = log(sum[vocab](exp(z)))
      hit  = sum[vocab](where(index(vocab) == target, (1 - smoothing)*z, 0) + z * smoothing / extent(vocab))
      where(target ~= -100, lse - hit + z_loss*lse*lse, 0)
]]

local m = pico.model "cross_entropy"
m:axes { vocab = 7, hidden = 4 }
local tokens, targets = m:input "tokens", m:input "targets"
local x = m("embed", "vocab hidden") { vocab = tokens }
local z = sum("hidden", x * m("head", "vocab hidden")) * 3
m:loss(cross_entropy(z, targets) + cross_entropy(pico.sin(z), targets, { smoothing = 0.1, z_loss = 0.05 }))
m:train { ignore = 3 }
return m

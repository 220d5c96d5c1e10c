-- Names meet by meaning, not by spelling: arguments that have axes called like the op's own (key, two, half), and an op
-- that calls another on axes it knows under other names.
local pico, nn = require "pico", require "nn"
local sum = pico.sum

local attend, scaled = pico.op [[
  attend(q[.., seq, head_dim], k[.., seq, head_dim], v[.., seq, head_dim]) = attention(q, k, v; window = 3)
  scaled(x[.., hidden], gain[hidden]) = rmsnorm(x, gain; eps = 1e-3) + softmax[hidden](x)
]]

local m = pico.model "hygiene"
m:axes { vocab = 11, hidden = 3, key = 2, half = 5, head_dim = 4, ffn = 6 }
local tokens, targets = m:input "tokens", m:input "targets"
local x = m("x", "vocab key half head_dim") { vocab = tokens }
local a = attend(nn.rope(x), x, x)
local y = m("y", "vocab hidden ffn") { vocab = tokens }
local b = scaled(y, m("gain", "ffn", { init = "ones" }))               -- over ffn: the gain says so
local c = scaled(y, m("gain2", "hidden", { init = "ones" }))
local z = sum("key half head_dim", a * m("out", "key half head_dim vocab")) + sum("hidden ffn", (b + c) * m("out2", "hidden ffn vocab"))
m:loss(nn.cross_entropy(z, targets))
return m

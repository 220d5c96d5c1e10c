-- same as: attention.lua
-- The text of attention under another name: what the node must equal.
local pico = require "pico"
require "nn"
local sum = pico.sum

local m = pico.model "attention"
m:axes { vocab = 7, hidden = 4, kv = 2, group = 2, head_dim = 3 }
m:input "targets"
local x = m("embed", "vocab hidden") { vocab = m:input "tokens" }
local function project(name, axes) return sum("hidden", x * m(name, "hidden " .. axes)) end
local attention = pico.op [[
  attention_text(q[.., seq, head_dim], k[.., seq, head_dim], v[.., seq, head_dim];
                 scale = 1/sqrt(extent(head_dim)), window = inf) =
      s    = scale * sum[head_dim](q * k{seq = key})
      seen = index(key) <= index(seq) and index(seq) - index(key) < window
      sum[key](softmax[key](where(seen, s, -inf)) * v{seq = key})
]]

local a = attention(project("q", "kv group head_dim"), project("k", "kv head_dim"), project("v", "kv head_dim"))
local loss = sum("kv group head_dim", a * a * m("grouped", "kv group head_dim"))
local b = attention(project("q2", "group head_dim"), project("k2", "head_dim"), project("v2", "head_dim"),
                    { scale = 0.9 })
loss = loss + sum("group head_dim", b * m("multi_query", "group head_dim") * b)
local c = attention(project("q3", "kv head_dim"), project("k3", "kv head_dim"), project("v3", "kv head_dim"),
                    { window = 2 })
loss = loss + sum("kv head_dim", c * m("window", "kv head_dim") * c)
local d = attention(project("q4", "head_dim"), project("k4", "head_dim"), project("v4", "head_dim"))
loss = loss + sum("head_dim", d * d * d)
local e = attention(project("q5", "(group kv) head_dim"), project("k5", "kv head_dim"), project("v5", "kv head_dim"),
                    { window = 3, scale = 0.5 })
m:loss(loss + sum("kv group head_dim", e * m("swapped", "head_dim kv group")))
return m

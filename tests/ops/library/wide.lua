-- differences: no
-- sizes: 37 3
-- Extents beyond every block and lane, and ragged: a block of a transformer with layernorm, biases, grouped attention, a gated
-- unit, and rows and columns reduced in between. Tested for derivatives where it is small; here for kernels.
local pico, nn = require "pico", require "nn"
local sum = pico.sum

local rows = pico.op [[ rows_and_columns[a, b](x[.., a, b], w[a], u[b]) =
    y = x - max[a](x) + min[b](x) * w
    y * sum[b](y*y) / extent(b) + mean[a](y) * u * y + 0.001 * sum[a, b](y) ]]

local m = pico.model "wide"
m:axes { vocab = 67, hidden = 70, ffn = 129, kv = 2, group = 3, head_dim = 36, a = 36, b = 33, one = 1 }
local tokens, targets = m:input "tokens", m:input "targets"
local x = m("embed", "vocab hidden") { vocab = tokens }
local function norm(name, x) return nn.layernorm(x, m(name .. ".gain", "hidden"), m(name .. ".bias", "hidden")) end
local function linear(name, from, to, x)
  return sum(from, x * m(name .. ".weight", ("(%s) (%s)"):format(to, from))) * 0.1 + m(name .. ".bias", to)
end
local function head_norm(name, x) return nn.rmsnorm(x, m(name, "head_dim", { init = "ones" })) end

local h = norm("norm1", x)
local q = nn.rope(head_norm("q_norm", linear("q", "hidden", "kv group head_dim", h)))
local k = nn.rope(head_norm("k_norm", linear("k", "hidden", "kv head_dim", h)))
local a = nn.attention(q, k, linear("v", "hidden", "kv head_dim", h), { window = 21 })
x = x + linear("o", "kv group head_dim", "hidden", a)
h = norm("norm2", x)
x = x + linear("down", "ffn", "hidden", nn.swiglu(linear("gate", "hidden", "ffn", h), linear("up", "hidden", "ffn", h)))
h = linear("grid", "hidden", "a b", norm("norm3", x))
h = rows("a", "b", h, m("rows.w", "a"), m("rows.u", "b"))
x = x + linear("back", "a b", "hidden", nn.softmax("a", h * 0.05))
local z = sum("hidden", x * m("head", "vocab hidden")) * 0.1
local part = sum("hidden", x * m("one", "one hidden")) { one = 0 }
m:loss(nn.cross_entropy(z, targets, { smoothing = 0.1, z_loss = 0.01 }) + part * part * 0.01)
m:train { ignore = 5 }
return m

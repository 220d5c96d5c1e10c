-- graphs/gpt2.lua: GPT-2: learned positions, LayerNorm and biases, tanh-GELU, tied head.
-- Its Conv1D weights lie as [in, out]; c_attn holds q, k and v side by side. Checkpoints with and without "transformer."
-- before the names are read alike.
local pico, nn = require "pico", require "nn"
local sum = pico.sum

local c = pico.config {
  vocab_size = 256, n_positions = 256, n_embd = 192, n_layer = 6, n_head = 6,
  n_inner = function(c) return 4 * c.n_embd end,
  layer_norm_epsilon = 1e-5, initializer_range = pico.optional(0.02), tie_word_embeddings = pico.optional(true),
  embd_pdrop = 0.0, resid_pdrop = 0.0, attn_pdrop = pico.only(0.0),
  model_type = pico.only "gpt2", activation_function = pico.only "gelu_new", scale_attn_weights = pico.only(true),
  scale_attn_by_inverse_layer_idx = pico.only(false), reorder_and_upcast_attn = pico.only(false),
  add_cross_attention = pico.only(false), quantization_config = pico.only(pico.null),
}

if c.n_embd % c.n_head ~= 0 then error(("n_embd (%d) is not a multiple of n_head (%d)"):format(c.n_embd, c.n_head)) end
local m = pico.model("gpt2", { init = c.initializer_range })
m:axes { hidden = c.n_embd, ffn = c.n_inner, vocab = c.vocab_size, position = c.n_positions,
         qkv = 3, heads = c.n_head, head_dim = c.n_embd // c.n_head }

local function norm(p, name, x)
  return nn.layernorm(x, p(name .. ".weight", "hidden", { init = "ones" }),
                         p(name .. ".bias", "hidden", { init = "zeros" }), { eps = c.layer_norm_epsilon })
end
local function linear(p, name, from, to, x, init)
  return sum(from, x * p(name .. ".weight", ("(%s) (%s)"):format(from, to), { init = init }))
       + p(name .. ".bias", ("(%s)"):format(to), { init = "zeros" })
end
local function drop(x, p) return p > 0 and nn.dropout(x, { p = p }) or x end

local function block(p, x)
  local small = c.initializer_range / math.sqrt(2 * c.n_layer)
  local h = linear(p, "attn.c_attn", "hidden", "qkv heads head_dim", norm(p, "ln_1", x))
  local a = nn.attention(h { qkv = 0 }, h { qkv = 1 }, h { qkv = 2 })
  x = x + drop(linear(p, "attn.c_proj", "heads head_dim", "hidden", a, small), c.resid_pdrop)

  h = nn.gelu_tanh(linear(p, "mlp.c_fc", "hidden", "ffn", norm(p, "ln_2", x)))
  return x + drop(linear(p, "mlp.c_proj", "ffn", "hidden", h, small), c.resid_pdrop)
end

local tokens, targets = m:input "tokens", m:input "targets"
local wte = m("transformer.wte.weight", "vocab hidden")
local wpe = m("transformer.wpe.weight", "position hidden")
local x = drop(wte { vocab = tokens } + wpe { position = "seq" }, c.embd_pdrop)
for i = 0, c.n_layer - 1 do x = m:layer("transformer.h." .. i, block, x) end
x = norm(m, "transformer.ln_f", x)
local head = c.tie_word_embeddings and wte or m("lm_head.weight", "vocab hidden")
m:loss(nn.cross_entropy(sum("hidden", x * head), targets))

m:train { data = "build/corpus.txt", steps = 300, lr = 6e-4, weight_decay = 0.1, clip = 1.0 }
return m

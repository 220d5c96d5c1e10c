-- graphs/qwen3.lua: Qwen3: Llama with a norm over each head of q and k.
local pico, nn = require "pico", require "nn"
local sum = pico.sum

-- Field a over field b, which must divide it.
local function ratio(c, a, b)
  if c[a] % c[b] ~= 0 then error(("%s (%d) is not a multiple of %s (%d)"):format(a, c[a], b, c[b]), 2) end
  return c[a] // c[b]
end

local c = pico.config {
  vocab_size = 256, hidden_size = 192, intermediate_size = 512,
  num_hidden_layers = 6, num_attention_heads = 6, num_key_value_heads = 3, head_dim = 32,
  max_position_embeddings = 1024, rope_theta = 1e6, rms_norm_eps = 1e-6,
  tie_word_embeddings = true, initializer_range = pico.optional(0.02),
  model_type = pico.only "qwen3", hidden_act = pico.only "silu", rope_scaling = pico.only(pico.null),
  attention_bias = pico.only(false), mlp_bias = pico.only(false), attention_dropout = pico.only(0.0),
  use_sliding_window = pico.only(false), sliding_window = pico.only(pico.null), quantization_config = pico.only(pico.null),
}

local m = pico.model("qwen3", { init = c.initializer_range })
m:axes { hidden = c.hidden_size, ffn = c.intermediate_size, vocab = c.vocab_size,
         kv = c.num_key_value_heads, group = ratio(c, "num_attention_heads", "num_key_value_heads"),
         head_dim = c.head_dim }

local function norm(p, name, axis, x)
  return nn.rmsnorm(x, p(name .. ".weight", axis, { init = "ones" }), { eps = c.rms_norm_eps })
end
local function linear(p, name, from, to, x)                  -- torch's Linear: the weight lies as [out, in]
  return sum(from, x * p(name .. ".weight", ("(%s) (%s)"):format(to, from)))
end
local function rope(x) return (nn.rope(x, { theta = c.rope_theta })) end

local function block(p, x)
  local h = norm(p, "input_layernorm", "hidden", x)
  local q = linear(p, "self_attn.q_proj", "hidden", "kv group head_dim", h)
  local k = linear(p, "self_attn.k_proj", "hidden", "kv head_dim", h)
  local v = linear(p, "self_attn.v_proj", "hidden", "kv head_dim", h)
  q, k = rope(norm(p, "self_attn.q_norm", "head_dim", q)), rope(norm(p, "self_attn.k_norm", "head_dim", k))
  x = x + linear(p, "self_attn.o_proj", "kv group head_dim", "hidden", nn.attention(q, k, v))

  h = norm(p, "post_attention_layernorm", "hidden", x)
  local gate, up = linear(p, "mlp.gate_proj", "hidden", "ffn", h), linear(p, "mlp.up_proj", "hidden", "ffn", h)
  return x + linear(p, "mlp.down_proj", "ffn", "hidden", nn.swiglu(gate, up))
end

local tokens, targets = m:input "tokens", m:input "targets"
local embed = m("model.embed_tokens.weight", "vocab hidden")
local x = embed { vocab = tokens }
for i = 0, c.num_hidden_layers - 1 do x = m:layer("model.layers." .. i, block, x) end
x = norm(m, "model.norm", "hidden", x)
local head = c.tie_word_embeddings and embed or m("lm_head.weight", "vocab hidden")
m:loss(nn.cross_entropy(sum("hidden", x * head), targets))

m:train { data = "build/corpus.txt", steps = 300, lr = 1e-3, weight_decay = 0.1, clip = 1.0 }
return m

-- graphs/llama.lua: Llama: grouped-query attention, rotary positions, SwiGLU.
-- Fields, parameter names and storage order are those of Hugging Face: --config takes a Llama's config.json, and
-- picorun --init its model.safetensors.
local pico, nn = require "pico", require "nn"
local sum = pico.sum

-- Field a over field b, which must divide it.
local function ratio(c, a, b)
  if c[a] % c[b] ~= 0 then error(("%s (%d) is not a multiple of %s (%d)"):format(a, c[a], b, c[b]), 2) end
  return c[a] // c[b]
end

-- The defaults make a model of a few million parameters. -D field=value changes one. With --config all fields must be in
-- the file, but for functions (computed from the others) and pico.optional (Hugging Face leaves them out at this value).
local c = pico.config {
  vocab_size = 256, hidden_size = 192, intermediate_size = 512,
  num_hidden_layers = 6, num_attention_heads = 6, num_key_value_heads = 3,
  head_dim = function(c) return (ratio(c, "hidden_size", "num_attention_heads")) end,
  max_position_embeddings = 1024, rope_theta = pico.optional(10000.0), rms_norm_eps = 1e-5,
  tie_word_embeddings = pico.optional(false), initializer_range = pico.optional(0.02),
  model_type = pico.only "llama", hidden_act = pico.only "silu", rope_scaling = pico.only(pico.null),
  attention_bias = pico.only(false), mlp_bias = pico.only(false), attention_dropout = pico.only(0.0),
  quantization_config = pico.only(pico.null),
}

local m = pico.model("llama", { init = c.initializer_range })
m:axes { hidden = c.hidden_size, ffn = c.intermediate_size, vocab = c.vocab_size,
         kv = c.num_key_value_heads, group = ratio(c, "num_attention_heads", "num_key_value_heads"),
         head_dim = c.head_dim }

local function norm(p, name, x)
  return nn.rmsnorm(x, p(name, "hidden", { init = "ones" }), { eps = c.rms_norm_eps })
end

local function block(p, x)
  local h = norm(p, "input_layernorm.weight", x)
  local q = sum("hidden", h * p("self_attn.q_proj.weight", "(kv group head_dim) hidden"))
  local k = sum("hidden", h * p("self_attn.k_proj.weight", "(kv head_dim) hidden"))
  local v = sum("hidden", h * p("self_attn.v_proj.weight", "(kv head_dim) hidden"))
  q, k = nn.rope(q, { theta = c.rope_theta }), nn.rope(k, { theta = c.rope_theta })
  local a = nn.attention(q, k, v)
  x = x + sum("kv group head_dim", a * p("self_attn.o_proj.weight", "hidden (kv group head_dim)"))

  h = norm(p, "post_attention_layernorm.weight", x)
  local gate = sum("hidden", h * p("mlp.gate_proj.weight", "ffn hidden"))
  local up   = sum("hidden", h * p("mlp.up_proj.weight", "ffn hidden"))
  return x + sum("ffn", nn.swiglu(gate, up) * p("mlp.down_proj.weight", "hidden ffn"))
end

local tokens, targets = m:input "tokens", m:input "targets"
local embed = m("model.embed_tokens.weight", "vocab hidden")
local x = embed { vocab = tokens }
for i = 0, c.num_hidden_layers - 1 do x = m:layer("model.layers." .. i, block, x) end
x = norm(m, "model.norm.weight", x)
local head = c.tie_word_embeddings and embed or m("lm_head.weight", "vocab hidden")
m:loss(nn.cross_entropy(sum("hidden", x * head), targets))

m:train { data = "build/corpus.txt", steps = 300, lr = 1e-3, weight_decay = 0.1, clip = 1.0 }
return m

-- graphs/nn.lua: the op library, in the notation; and the optimizer that a model has if it names none.
--
--   local nn = require "nn"
--   nn.rmsnorm(x, gain, { eps = 1e-5 })      tensors first, then scalars by name
--   nn.softmax("key", s)                     axes in brackets come first
--
-- Gradients, layouts and kernels follow from these texts; the compiler knows none of the names. One of them has a node of
-- its own besides: pico.fused says that calls of `attention` from Lua become the attention node, whose meaning, and test,
-- this text is.
local pico = require "pico"

local nn = pico.library [[
  -- activations
  silu(x)      = x * sigmoid(x)
  gelu(x)      = 0.5 * x * (1 + erf(x / sqrt(2)))
  gelu_tanh(x) = 0.5 * x * (1 + tanh(sqrt(2/pi) * (x + 0.044715 * x^3)))
  relu2(x)     = where(x > 0, x, 0)^2
  swiglu(gate, up) = silu(gate) * up
  softcap(x; cap)  = cap * tanh(x / cap)

  -- norms
  rmsnorm(x[.., hidden], gain[hidden]; eps = 1e-6) =
      x * rsqrt(mean[hidden](x^2) + eps) * gain
  gemma_norm(x[.., hidden], gain[hidden]; eps = 1e-6) = rmsnorm(x, 1 + gain; eps)
  layernorm(x[.., hidden], gain[hidden], bias[hidden]; eps = 1e-5) =
      c = x - mean[hidden](x)
      c * rsqrt(mean[hidden](c^2) + eps) * gain + bias
  add_rmsnorm(x[.., hidden], y[.., hidden], gain[hidden]; eps = 1e-6) =
      s = x + y
      s, rmsnorm(s, gain; eps)

  -- softmax and losses
  softmax[k](x[.., k]) =
      e = exp(x - stop_gradient(max[k](x)))
      e / sum[k](e)
  log_softmax[k](x[.., k]) =
      s = x - stop_gradient(max[k](x))
      s - log(sum[k](exp(s)))
  cross_entropy(z[.., vocab], target[..]; ignore = -100, smoothing = 0, z_loss = 0) =
      top  = stop_gradient(max[vocab](z))
      lse  = log(sum[vocab](exp(z - top))) + top
      hit  = (1 - smoothing)*z{vocab = target} + smoothing*mean[vocab](z)
      f32(where(target == ignore, 0, lse - hit + z_loss*lse^2))

  -- positions
  rope_frequency[half](; theta) = theta^(-index(half) / extent(half))
  rotate[two](x[.., two], angle[..]) =
      turned = where(index(two) == 0, -x{two = 1}, x{two = 0})
      x * const(cos(angle)) + turned * const(sin(angle))
  rope(x[.., seq, head_dim = (two: 2, half)]; theta = 10000) =
      rotate[two](x, index(seq) * rope_frequency[half](; theta))
  rope_interleaved(x[.., seq, head_dim = (half, two: 2)]; theta = 10000) =
      rotate[two](x, index(seq) * rope_frequency[half](; theta))
  rope_llama3(x[.., seq, head_dim = (two: 2, half)]; theta, factor, low, high, context) =
      f      = rope_frequency[half](; theta)
      smooth = min(max((context*f/(2*pi) - low) / (high - low), 0), 1)
      rotate[two](x, index(seq) * (smooth*f + (1 - smooth)*f/factor))
  alibi(s[.., heads, seq, key]) =
      s - 2^(-8 * (index(heads) + 1) / extent(heads)) * (index(seq) - index(key))

  -- attention as text: what the fused node must equal
  attention(q[.., seq, head_dim], k[.., seq, head_dim], v[.., seq, head_dim];
            scale = 1/sqrt(extent(head_dim)), window = inf) =
      s    = scale * sum[head_dim](q * k{seq = key})
      seen = index(key) <= index(seq) and index(seq) - index(key) < window
      sum[key](softmax[key](where(seen, s, -inf)) * v{seq = key})
  mla_attention(q[.., heads, seq, nope], qr[.., heads, seq, rot],
                k[.., heads, seq, nope], kr[.., seq, rot], v[.., heads, seq, value];
                scale = 1/sqrt(extent(nope) + extent(rot))) =
      s = scale * (sum[nope](q * k{seq = key}) + sum[rot](qr * kr{seq = key}))
      p = softmax[key](where(index(key) <= index(seq), s, -inf))
      sum[key](p * v{seq = key})
  concat[first, second, d](a[.., first], b[.., second]) =
      where(index(d) < extent(first), a{first = d + 0}, b{second = d - extent(first)})

  -- lookups, convolution, routing
  embedding(table[vocab, hidden], token[..]) = table{vocab = token}
  causal_conv(x[.., seq, channel], w[channel, tap], bias[channel]) =
      sum[tap](x{seq = seq + tap + 1 - extent(tap)} * w) + bias
  top_k_gate[expert](z[.., expert]; k) =
      p     = softmax[expert](z)
      o     = p{expert = other}
      ahead = sum[other](where(o > p or o == p and index(other) < index(expert), 1, 0))
      kept  = where(ahead < k, p, 0)
      kept / sum[expert](kept)
  dropout(x[..]; p) = where(random[..]() < p, 0, x / (1 - p))

  -- a gradient of one's own: rounding that passes the gradient through
  round_through(x) = floor(x + 0.5)
  grad round_through(d) = d

  -- optimizers
  sum_of_squares(g[..]) = f32(sum[..](g^2))
  clip_factor(square[]; clip) = where(clip > 0, min(1, clip / (sqrt(square) + 1e-6)), 1)
  adamw(w[..], g[..], m[..], v[..], clip[]; lr, beta1, beta2, eps, decay, step) =
      h  = clip * g
      m' = beta1*m + (1 - beta1)*h
      v' = beta2*v + (1 - beta2)*h^2
      u  = (m' / (1 - beta1^step)) / (sqrt(v' / (1 - beta2^step)) + eps)
      w' = w - lr*(u + decay*w)
  lion(w[..], g[..], m[..]; lr, beta1, beta2, decay) =
      u  = sign(beta1*m + (1 - beta1)*g)
      m' = beta2*m + (1 - beta2)*g
      w' = w - lr*(u + decay*w)
  ema(average[..], w[..]; decay) =
      average' = decay*average + (1 - decay)*w
  newton_schulz(x[row, col]) =
      a  = sum[col](x * x{row = row2})
      aa = sum[row2](a * a{row = row2, row2 = row3}){row3 = row2}
      3.4445*x + sum[row2]((2.0315*aa - 4.7750*a) * x{row = row2})
  muon_start(g[row, col], m[row, col]; beta) =
      m' = beta*m + g
      u  = beta*m' + g
      u / (sqrt(sum[row, col](u^2)) + 1e-7)
]]
pico.fused { attention = nn.attention }

-- AdamW with clipping by the norm of all gradients: decoupled decay, none on gains and biases unless weight_decay_1d says so.
function nn.adamw_step(m)
  local o = m:scalars "lr beta1 beta2 eps clip step weight_decay weight_decay_1d"
  local square = 0
  for _, p in ipairs(m.params) do square = square + nn.sum_of_squares(p.grad) end
  m:report("grad_norm", pico.sqrt(square))
  local factor = nn.clip_factor(square, { clip = o.clip })
  for _, p in ipairs(m.params) do
    nn.adamw(p, p.grad, p:state "exp_avg", p:state "exp_avg_sq", factor,
             { lr = o.lr, beta1 = o.beta1, beta2 = o.beta2, eps = o.eps, step = o.step,
               decay = p.decay and o.weight_decay or o.weight_decay_1d })
  end
end

return nn

-- args: --config config.json -D layers=3 --seq 5 --micro-batch 2
local pico, nn = require "pico", require "nn"
local c = pico.config {
  width = 8, layers = 2, name = "plain", act = pico.only "silu", scaling = pico.only(pico.null), eps = 1e-5, off = 0,
  inner = function(c) return 4 * c.width end, tied = pico.optional(true), theta = pico.optional(1e4),
  half = pico.optional(function(c) return c.width / 2 end),
}
assert(c.width == 12 and math.type(c.width) == "integer", "width")
assert(c.layers == 3 and c.inner == 48 and c.tied == true and c.theta == 1e4 and c.half == 6 and c.off == 0)
assert(c.name == "x")
assert(tostring(c.scaling) == "null" and c.act == "silu")
for k, v in pairs { b = 1, a = 2, 10, 20 } do assert(k and v) end

local m = pico.model "config"
m:axes { hidden = c.width, vocab = 7 }
local tokens, targets = m:input "tokens", m:input "targets"
local embed = m("embed", "vocab hidden")
m:loss(nn.cross_entropy(pico.sum("hidden", embed { vocab = tokens } * m("head", "vocab hidden")), targets))
return m

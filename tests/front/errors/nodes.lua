local pico = require "pico"
local m = pico.model "t"
local x = pico.exp(m("w", "seq"))
while true do x = pico.exp(x) end

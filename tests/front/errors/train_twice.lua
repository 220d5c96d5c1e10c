local pico, nn = require "pico", require "nn"
local m = pico.model "x"
m:axes { vocab = 8, hidden = 4 }
m:train { steps = 3 }
m:train { lr = 1, steps = 4 }

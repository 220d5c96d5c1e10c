-- One call of a C function: no instruction is counted, so a clock ends it.
local text = string.rep("a", 40)
local found = text:find(string.rep(".-", 20) .. "b")

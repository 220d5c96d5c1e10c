local function f() error("bad width", 2) end
f()

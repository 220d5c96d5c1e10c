local function f() error "nothing works" end
f()

pcall(os.exit)
print(pcall(function() os.exit(0) end))

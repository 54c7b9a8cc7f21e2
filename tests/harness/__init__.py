"""What tests share: processes, file systems, servers and programs to test with."""

package redistest

import "syscall"

// dieWithParent makes the system end a server with the test's process, however that ends.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

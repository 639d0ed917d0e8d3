module github.com/breakerkit/breaker/examples/fakeclock

go 1.26.0

require (
	github.com/benbjohnson/clock v1.3.5
	github.com/breakerkit/breaker v0.0.0
	github.com/stretchr/testify v1.12.1
)

require (
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sync v0.25.0 // indirect
)

replace github.com/breakerkit/breaker => ../../

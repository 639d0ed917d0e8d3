module github.com/breakerkit/breaker/examples/router

go 1.26.0

require (
	github.com/BurntSushi/toml v1.6.0
	github.com/breakerkit/breaker v0.0.0
	github.com/goccy/go-yaml v1.19.2
	github.com/stretchr/testify v1.12.1
	go.uber.org/goleak v1.3.0
	go.yaml.in/yaml/v3 v3.0.6
)

require golang.org/x/sync v0.25.0 // indirect

replace github.com/breakerkit/breaker => ../../

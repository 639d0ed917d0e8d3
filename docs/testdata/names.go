// Package snippet has the names that code in the documentation may use without declaring them, and imports the packages
// that it may name. It is checked together with each piece of such code, and is never run.
package snippet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	redis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	yaml "go.yaml.in/yaml/v3"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/breakerhttp"
	"github.com/breakerkit/breaker/pool"
	"github.com/breakerkit/breaker/store"
	"github.com/breakerkit/breaker/store/storetest"
	storeredis "github.com/breakerkit/breaker/store_redis"
)

// What a program has around the code that is shown.
var (
	ctx      context.Context
	err      error
	circuit  *breaker.Circuit
	client   *redis.Client
	shared   breaker.Store
	budget   *breaker.Budget
	host     string
	question string
	text     []byte
	options  []breaker.Option

	primary, backup *Client
	payment         Payment

	ErrNotFound, ErrInvalid, ErrQuota error
)

// What calls return.
type (
	Answer  struct{}
	Page    struct{}
	Quote   struct{}
	Receipt struct{}
	Report  struct{}
	Team    struct{}
	User    struct{}
	Order   struct{ Stale bool }
)

// Payment is what a call is about.
type Payment struct{}

// paymentKey is the key of a Payment in a context.
type paymentKey struct{}

// Client stands for the client of one provider.
type Client struct{}

// Ask calls the provider.
func (*Client) Ask(ctx context.Context, question string) (Answer, error) { return Answer{}, nil }

// The dependency: an HTTP request, a query, anything that takes a context and returns a value or an error.

func fetch[T any](ctx context.Context) (v T, err error)       { return v, nil }
func fetchBackup[T any](ctx context.Context) (v T, err error) { return v, nil }
func payPrimary(ctx context.Context) (Receipt, error)         { return Receipt{}, nil }
func payBackup(ctx context.Context) (Receipt, error)          { return Receipt{}, nil }
func work(ctx context.Context) error                          { return nil }
func ping(ctx context.Context) error                          { return nil }
func report(ctx context.Context, city string) (Report, error) { return Report{}, nil }
func closing(ctx context.Context) (float64, error)            { return 0, nil }
func Today(ctx context.Context, city string) (Report, error)  { return Report{}, nil }
func lastKnownPrice() float64                                 { return 0 }

// Metrics of one's own.

func observe(circuit string, o breaker.Outcome, took time.Duration) {}
func count(circuit string, shadow bool)                             {}

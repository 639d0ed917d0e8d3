package storeredis

import (
	"context"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"

	"github.com/redis/go-redis/v9"
)

//go:embed lua/ledger.lua
var ledgerLua string

//go:embed lua/window.lua
var windowLua string

//go:embed lua/report.lua
var reportLua string

//go:embed lua/move.lua
var moveLua string

//go:embed lua/acquire.lua
var acquireLua string

//go:embed lua/settle.lua
var settleLua string

//go:embed lua/cache_set.lua
var cacheSetLua string

// The scripts on a circuit begin with the same parts.
var (
	reportScript  = newScript(ledgerLua + windowLua + reportLua)
	moveScript    = newScript(ledgerLua + windowLua + moveLua)
	acquireScript = newScript(ledgerLua + windowLua + acquireLua)
	settleScript  = newScript(ledgerLua + windowLua + settleLua)
	cacheScript   = newScript(cacheSetLua)
)

// script is a Lua script with the name that the server knows it by once it has run it.
type script struct{ source, sha string }

func newScript(source string) *script {
	sum := sha1.Sum([]byte(source))
	return &script{source, hex.EncodeToString(sum[:])}
}

// call is a script to be run on keys, all of one hash slot.
type call struct {
	script *script
	keys   []string
	args   []any
}

// command asks for a script by its name, or brings its source.
func (c *call) command(ctx context.Context, withSource bool) once {
	args := make([]any, 0, 3+len(c.keys)+len(c.args))
	if withSource {
		args = append(args, "eval", c.script.source)
	} else {
		args = append(args, "evalsha", c.script.sha)
	}
	args = append(args, len(c.keys))
	for _, k := range c.keys {
		args = append(args, k)
	}
	return once{redis.NewCmd(ctx, append(args, c.args...)...)}
}

// once is a command that a client must not send a second time when it got no answer, whatever its own settings say: the
// first may have been carried out. Redirections are followed; what is redirected has not been.
type once struct{ *redis.Cmd }

func (once) NoRetry() bool { return true }

// run runs calls in one pipeline. A server that does not know a script, since it has been restarted, promoted or flushed,
// or is another node of the cluster, is sent it in a second one.
func run(ctx context.Context, client redis.UniversalClient, calls []call) []once {
	done := make([]once, len(calls))
	unknown := make([]int, len(calls))
	for i := range calls {
		unknown[i] = i
	}
	for _, withSource := range []bool{false, true} {
		pipe := client.Pipeline()
		for _, i := range unknown {
			done[i] = calls[i].command(ctx, withSource)
			_ = pipe.Process(ctx, done[i]) // it only queues
		}
		_, err := pipe.Exec(ctx)
		var still []int
		for _, i := range unknown {
			if err != nil && done[i].Err() == nil && done[i].Val() == nil {
				done[i].SetErr(err) // a login that failed is no command's own error
			}
			if redis.HasErrorPrefix(done[i].Err(), "NOSCRIPT") {
				still = append(still, i)
			}
		}
		if unknown = still; len(unknown) == 0 {
			break
		}
	}
	return done
}

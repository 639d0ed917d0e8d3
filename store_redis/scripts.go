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

// All scripts on a circuit begin with ledger.lua and window.lua.
var (
	reportScript  = newScript(ledgerLua + windowLua + reportLua)
	moveScript    = newScript(ledgerLua + windowLua + moveLua)
	acquireScript = newScript(ledgerLua + windowLua + acquireLua)
	settleScript  = newScript(ledgerLua + windowLua + settleLua)
	cacheScript   = newScript(cacheSetLua)
)

// script is a Lua script with its SHA-1, by which the server knows it once it has run it.
type script struct{ source, sha string }

func newScript(source string) *script {
	sum := sha1.Sum([]byte(source))
	return &script{source, hex.EncodeToString(sum[:])}
}

// call is a script to be run, with its keys, all of one hash slot, and its arguments.
type call struct {
	script *script
	keys   []string
	args   []any
}

// command returns the command that runs a script: by its SHA-1 or, withSource, by its source.
func (c *call) command(ctx context.Context, withSource bool) sentOnce {
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
	return sentOnce{redis.NewCmd(ctx, append(args, c.args...)...)}
}

// sentOnce is a command that the client must not send a second time when it got no answer, whatever its own settings say:
// the first may have been carried out. Redirections are followed: a command that is redirected was not carried out.
type sentOnce struct{ *redis.Cmd }

func (sentOnce) NoRetry() bool { return true }

// run runs calls in one pipeline. Scripts that a server does not know are sent again, with their source, in a second one:
// the server has been restarted, promoted or flushed, or is another node of the cluster.
func run(ctx context.Context, client redis.UniversalClient, calls []call) []sentOnce {
	done := make([]sentOnce, len(calls))
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
				done[i].SetErr(err) // after a failed login the commands have no error of their own
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

package breaker_test
import ("testing";"runtime";"time";"log/slog";"context"
"github.com/breakerkit/breaker")
func zzSize(t *testing.T, name string, f func() any) {
	const n=100000
	kept:=make([]any,n)
	b:=mdlHeap()
	for i:=range kept{kept[i]=f()}
	t.Logf("%s %d", name,(mdlHeap()-b)/n)
	runtime.KeepAlive(kept)
}
func TestZZSize(t *testing.T){
	h:=breaker.Hooks{Call: func(context.Context, breaker.CallEvent){}}
	zzSize(t,"default",func() any{return breaker.Must(breaker.New[int]("x"))})
	zzSize(t,"usual",func() any{return breaker.Must(breaker.New[int]("x", breaker.WithFailureThreshold(3),breaker.WithOpenTimeout(time.Minute),breaker.WithLogger(slog.Default()),breaker.WithHooks(h)))})
	zzSize(t,"retry",func() any{return breaker.Must(breaker.New[int]("x", breaker.WithTimeout(3),breaker.WithRetry(breaker.MaxRetries(3)), breaker.WithFallbackValue(3)))})
	zzSize(t,"rate",func() any{return breaker.Must(breaker.New[int]("x", breaker.WithTrip(breaker.FailureRate(0.5,20,breaker.Last(time.Minute)))))})
	zzSize(t,"count",func() any{return breaker.Must(breaker.New[int]("x", breaker.WithTrip(breaker.FailureRate(0.5,20,breaker.LastCalls(100)))))})
	zzSize(t,"own",func() any{return breaker.Must(breaker.New[int]("x", breaker.WithRand(func() float64 { return float64(len(t.Name())+int(time.Now().Unix())*0)})))})
}

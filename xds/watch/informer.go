// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package watch

import (
	"context"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// lister is a client of one kind of object.
type lister[L runtime.Object] interface {
	List(ctx context.Context, opts metav1.ListOptions) (L, error)
	Watch(ctx context.Context, opts metav1.ListOptions) (kwatch.Interface, error)
}

// newInformer is an informer as client-go's factories make them, but without an
// index by namespace, which nobody asks for, and with its requests followed by p.
func newInformer[L runtime.Object](client any, of lister[L], example runtime.Object, selector string, p *pulse) cache.SharedIndexInformer {
	return cache.NewSharedIndexInformerWithOptions(cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector
			l, err := asked(ctx, p, func() (runtime.Object, error) { return of.List(ctx, o) })
			if err != nil {
				return nil, err
			}
			p.answered()
			return l, nil
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (kwatch.Interface, error) {
			o.FieldSelector = selector
			w, err := asked(ctx, p, func() (kwatch.Interface, error) { return of.Watch(ctx, o) })
			if err != nil {
				return nil, err
			}
			p.open(time.Now())
			return &stream{w, sync.OnceFunc(func() { p.close(time.Now()) })}, nil
		},
	}, client), example, cache.SharedIndexInformerOptions{})
}

// asked makes a request that p follows; of one that succeeds the caller tells p what
// it has brought.
func asked[T any](ctx context.Context, p *pulse, request func() (T, error)) (T, error) {
	p.ask(time.Now())
	v, err := request()
	if err != nil && ctx.Err() == nil {
		p.fail(err, time.Now())
	}
	return v, err
}

// A client that knows the .proto files and nothing else of Stratalog. It appends, reads and follows, tries what it may
// not do, and prints one JSON object a step. test_go_client.py builds it, runs it against a server, and judges the steps.
//
//	client HOST:PORT TOPIC     the topic exists, with three partitions
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "stratalog.test/client/stratalogv1"
)

const recordCount = 1000

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: client HOST:PORT TOPIC")
		os.Exit(2)
	}
	connection, err := grpc.NewClient(os.Args[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(err)
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	client := &client{ctx: ctx, log: pb.NewLogServiceClient(connection), topic: os.Args[2]}
	client.describe()
	client.appendPlain()
	client.appendStream()
	client.readAll()
	client.follow()
	client.tryForbidden()
}

type client struct {
	ctx   context.Context
	log   pb.LogServiceClient
	topic string
	id    string
}

func (c *client) describe() {
	metadata, err := c.log.Metadata(c.ctx, &pb.MetadataRequest{Topics: []string{c.topic}})
	must(err)
	topic := metadata.Topics[0]
	c.id = topic.TopicId
	endpoints := map[string]bool{}
	for _, partition := range topic.Partitions {
		endpoints[partition.Endpoint] = true
	}
	report("describe", map[string]any{
		"partition_count": len(topic.Partitions), "endpoints": keys(endpoints), "max_request_bytes": metadata.MaxRequestBytes,
	})
}

// Plain records with an id from the server: the same request twice is stored once.
func (c *client) appendPlain() {
	producer, err := c.log.InitProducer(c.ctx, &pb.InitProducerRequest{})
	must(err)
	request := &pb.AppendRequest{
		Topic: c.topic, TopicId: c.id, Partition: proto.Int32(0), ExpectedOffset: proto.Int64(0),
		Payload: records(record("first", "1"), &pb.Record{Key: []byte("gone")}),
		Producer: &pb.ProducerSequence{
			ProducerId: producer.ProducerId, ProducerEpoch: producer.ProducerEpoch, BaseSequence: 0,
		},
	}
	first, err := c.log.Append(c.ctx, request)
	must(err)
	again, err := c.log.Append(c.ctx, request)
	must(err)
	keyed, err := c.log.Append(c.ctx, &pb.AppendRequest{Topic: c.topic, Payload: records(record("by key", "2"))})
	must(err)
	report("append", map[string]any{
		"base_offset": first.BaseOffset, "last_offset": first.LastOffset, "duplicate": first.Duplicate,
		"again_base_offset": again.BaseOffset, "again_duplicate": again.Duplicate,
		"same_topic": first.TopicId == c.id, "keyed_partition": keyed.Partition,
	})
}

// One stream to partitions 1 and 2; a refused request of the one does not stop the other.
func (c *client) appendStream() {
	stream, err := c.log.AppendStream(c.ctx)
	must(err)
	go func() {
		for number := 0; number < recordCount; number++ {
			request := &pb.AppendStreamRequest{
				Sequence: uint64(number + 1), Topic: c.topic, Partition: proto.Int32(int32(1 + number%2)),
				Payload: &pb.AppendStreamRequest_Records{Records: &pb.Records{Records: []*pb.Record{
					record(fmt.Sprintf("k%d", number), fmt.Sprintf("v%d", number)),
				}}},
			}
			if number == recordCount-1 {
				request.ExpectedOffset = proto.Int64(1 << 40)
			}
			must(stream.Send(request))
		}
		must(stream.CloseSend())
	}()
	acknowledged, refusals := 0, []string{}
	for {
		answer, err := stream.Recv()
		if err == io.EOF {
			break
		}
		must(err)
		switch outcome := answer.Outcome.(type) {
		case *pb.AppendStreamResponse_Ack:
			acknowledged++
		case *pb.AppendStreamResponse_Status:
			refusals = append(refusals, reason(status.ErrorProto(outcome.Status)))
		}
	}
	report("append_stream", map[string]any{"acknowledged": acknowledged, "refusals": refusals})
}

func (c *client) readAll() {
	stream, err := c.log.Read(c.ctx, &pb.ReadRequest{Topic: c.topic, TopicId: c.id, Start: earliest()})
	must(err)
	counts, ordered, tombstones := map[int32]int64{}, true, 0
	for {
		answer, err := stream.Recv()
		if err == io.EOF {
			break
		}
		must(err)
		for _, partition := range answer.Partitions {
			for _, stored := range partition.Records {
				// Nothing was compacted, so offsets have no holes.
				ordered = ordered && stored.Offset == counts[partition.Partition]
				counts[partition.Partition]++
				if stored.Value == nil {
					tombstones++
				}
			}
		}
	}
	report("read", map[string]any{
		"counts": []int64{counts[0], counts[1], counts[2]}, "ordered": ordered, "tombstones": tombstones,
	})
}

// Follows partition 2 from its end, and sees a record that is appended meanwhile.
func (c *client) follow() {
	ctx, stop := context.WithCancel(c.ctx)
	defer stop()
	latest := &pb.Position{At: &pb.Position_Spec{Spec: pb.OffsetSpec_OFFSET_SPEC_LATEST}}
	stream, err := c.log.Read(ctx, &pb.ReadRequest{
		Topic: c.topic, Partitions: []*pb.ReadPartition{{Partition: 2}}, Start: latest, Follow: true, HeartbeatMs: 100,
	})
	must(err)
	heartbeats, seen := 0, ""
	for seen == "" {
		answer, err := stream.Recv()
		must(err)
		if len(answer.Partitions) == 0 {
			heartbeats++
			if heartbeats == 1 {
				_, err := c.log.Append(c.ctx, &pb.AppendRequest{
					Topic: c.topic, Partition: proto.Int32(2), Payload: records(record("late", "seen")),
				})
				must(err)
			}
		}
		for _, partition := range answer.Partitions {
			for _, stored := range partition.Records {
				seen = string(stored.Value)
			}
		}
	}
	report("follow", map[string]any{"value": seen, "had_heartbeats": heartbeats > 0})
}

func (c *client) tryForbidden() {
	one := records(record("k", "v"))
	_, err := c.log.Append(c.ctx, &pb.AppendRequest{Topic: c.topic + "-none", Partition: proto.Int32(0), Payload: one})
	report("unknown_topic", failure(err))
	_, err = c.log.Append(c.ctx, &pb.AppendRequest{
		Topic: c.topic, TopicId: "00000000-0000-4000-8000-000000000000", Partition: proto.Int32(0), Payload: one,
	})
	report("other_topic", failure(err))
	_, err = c.log.Append(c.ctx, &pb.AppendRequest{
		Topic: c.topic, Partition: proto.Int32(0), Payload: one, ExpectedOffset: proto.Int64(1 << 40),
	})
	report("unexpected_offset", failure(err))
	_, err = c.log.Append(c.ctx, &pb.AppendRequest{
		Topic: c.topic, Partition: proto.Int32(0), Payload: one, Producer: &pb.ProducerSequence{ProducerId: 1 << 50},
	})
	report("invented_producer", failure(err))
	_, err = c.log.Fence(c.ctx, &pb.FenceRequest{Topic: c.topic, Partition: 0, Token: "mine"})
	must(err)
	_, err = c.log.Append(c.ctx, &pb.AppendRequest{
		Topic: c.topic, Partition: proto.Int32(0), Payload: one, FencingToken: proto.String("yours"),
	})
	report("other_token", failure(err))
	_, err = c.log.Append(c.ctx, &pb.AppendRequest{Topic: c.topic, Partition: proto.Int32(0)})
	report("no_records", failure(err))
	fetched, err := c.log.Fetch(c.ctx, &pb.FetchRequest{Partitions: []*pb.FetchPartition{{
		Topic: c.topic, Partition: 0, Start: &pb.Position{At: &pb.Position_Offset{Offset: 1 << 40}},
	}}})
	must(err)
	report("out_of_range", failure(status.ErrorProto(fetched.Partitions[0].Error)))
}

func record(key, value string) *pb.Record {
	return &pb.Record{Key: []byte(key), Value: []byte(value)}
}

func records(records ...*pb.Record) *pb.AppendRequest_Records {
	return &pb.AppendRequest_Records{Records: &pb.Records{Records: records}}
}

func earliest() *pb.Position {
	return &pb.Position{At: &pb.Position_Spec{Spec: pb.OffsetSpec_OFFSET_SPEC_EARLIEST}}
}

func failure(err error) map[string]any {
	return map[string]any{"code": status.Code(err).String(), "reason": reason(err)}
}

// reason returns the stable name of a failure, from its details.
func reason(err error) string {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return info.Reason
		}
	}
	return ""
}

func keys(set map[string]bool) []string {
	found := []string{}
	for key := range set {
		found = append(found, key)
	}
	return found
}

func report(step string, values map[string]any) {
	values["step"] = step
	must(json.NewEncoder(os.Stdout).Encode(values))
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "unexpected:", err)
		os.Exit(1)
	}
}
